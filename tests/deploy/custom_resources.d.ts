// The custom resources of JobSet, Kubeflow Trainer and cert-manager, as far as deploy/kubernetes uses
// them. No package of npm has their types. They follow the documented API of
// jobset.x-k8s.io/v1alpha2, trainer.kubeflow.org/v1alpha1 and cert-manager.io/v1; what is not used is
// left out, so that a check is strict. Everything inside a job is Kubernetes's own published type.

import type { IJobTemplateSpec } from "kubernetes-models/batch/v1/JobTemplateSpec";
import type { IObjectMeta } from "@kubernetes-models/apimachinery/apis/meta/v1/ObjectMeta";

interface ReplicatedJob {
  name: string;
  replicas?: number;
  dependsOn?: { name: string; status: "Ready" | "Complete" }[];
  template: IJobTemplateSpec;
}

interface FailureRule {
  name: string;
  action:
    | "FailJobSet"
    | "RestartJobSet"
    | "RestartJobSetAndIgnoreMaxRestarts"
    | "RestartJob"
    | "RestartJobAndIgnoreMaxRestarts";
  onJobFailureReasons?: string[];
  targetReplicatedJobs?: string[];
}

interface JobSetSpec {
  replicatedJobs: ReplicatedJob[];
  network?: { enableDNSHostnames?: boolean; publishNotReadyAddresses?: boolean };
  successPolicy?: { operator: "All" | "Any"; targetReplicatedJobs?: string[] };
  failurePolicy?: { maxRestarts?: number; rules?: FailureRule[] };
  suspend?: boolean;
}

export interface IJobSet {
  apiVersion: "jobset.x-k8s.io/v1alpha2";
  kind: "JobSet";
  metadata?: IObjectMeta;
  spec?: JobSetSpec;
}

export interface IClusterTrainingRuntime {
  apiVersion: "trainer.kubeflow.org/v1alpha1";
  kind: "ClusterTrainingRuntime";
  metadata?: IObjectMeta;
  spec: {
    mlPolicy?: { numNodes?: number };
    template: { metadata?: IObjectMeta; spec: JobSetSpec };
  };
}

export interface ITrainJob {
  apiVersion: "trainer.kubeflow.org/v1alpha1";
  kind: "TrainJob";
  metadata?: IObjectMeta;
  spec: {
    runtimeRef: { apiGroup?: string; kind?: string; name: string };
    trainer?: { numNodes?: number; image?: string };
  };
}

export interface IIssuer {
  apiVersion: "cert-manager.io/v1";
  kind: "Issuer";
  metadata: IObjectMeta;
  spec: { selfSigned: Record<string, never> } | { ca: { secretName: string } };
}

export interface ICertificate {
  apiVersion: "cert-manager.io/v1";
  kind: "Certificate";
  metadata: IObjectMeta;
  spec: {
    secretName: string;
    isCA?: boolean;
    commonName?: string;
    duration?: string;
    privateKey?: {
      algorithm?: "RSA" | "ECDSA" | "Ed25519";
      size?: number;
      rotationPolicy?: "Never" | "Always";
    };
    usages?: ("server auth" | "client auth")[];
    uris?: string[];
    dnsNames?: string[];
    issuerRef: { name: string; kind?: "Issuer" | "ClusterIssuer" };
  };
}
